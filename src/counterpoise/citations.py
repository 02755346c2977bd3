"""Who proposed what."""

PAPER = (
    "Li, Zheng, Xiao, Wu, Geng, Chen and Cui 2024, Debiased Collaborative Filtering with Kernel-Based Causal Balancing"
)
SCHNABEL = (
    "Schnabel, Swaminathan, Singh, Chandak and Joachims 2016, Recommendations as Treatments: Debiasing Learning and "
    "Evaluation"
)
DAI = (
    "Dai, Li, Wu, Dong, Zhou, Zhang, He, Zhang and Sun 2022, A Generalized Doubly Robust Learning Framework for "
    "Debiasing Post-Click Conversion Rate Prediction"
)
MATTERS = "Li, Xiao, Zheng, Wu and Cui 2023, Propensity Matters: Measuring and Enhancing Balancing for Recommendation"
TARGETED = (
    "Li, Lyu, Zheng and Wu 2023, TDR-CL: Targeted Doubly Robust Collaborative Learning for Debiased Recommendations"
)
ORDINAL = "McCullagh 1980, Regression Models for Ordinal Data"
MARLIN = "Marlin and Zemel 2009, Collaborative Prediction and Ranking with Non-Random Missing Data"
VOICES = (
    "Hernandez-Lobato, Houlsby and Ghahramani 2014, Probabilistic Matrix Factorization with Non-random Missing Data; "
    "Wang, Liang, Charlin and Blei 2020, Causal Inference for Recommender Systems"
)
