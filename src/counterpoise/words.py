"""The words that settings are chosen from, in one place and without heavy imports."""

from typing import Literal

Duplicates = Literal["error", "last", "mean"]  # a pair that occurs twice: refuse, keep the last row, average
Protocol = Literal["honest", "paper"]  # how unbiased ratings become probe and test
EmptyUsers = Literal["skip", "one", "zero"]  # a test user without a positive label: left out, NDCG 1, NDCG 0
Unknown = Literal["error", "popular"]  # a user the log does not have: refuse, or score items by their label rate
KernelName = Literal["gaussian", "exponential"]
Select = Literal["random", "worst_case", "worst_case_top", "witness", "adaptive", "spectral", "adaptive_spectral"]
SelectForSamples = Literal["random", "worst_case", "worst_case_top", "witness", "spectral"]  # rules that need no error
Weighting = Literal["error", "variance", "bias", "mse"]  # what an imputation is trained for: see `residual_weights`
Solver = Literal["dual", "gradient"]  # exact over the whole log, or the paper's Algorithm 1
Prior = Literal["uniform", "naive-bayes"]  # the weights that balancing starts from
Covariate = Literal["odds", "weight"]  # what an imputation is targeted along: 1 / propensity - 1, or 1 / propensity
BenchBackbone = Literal["strong", "paper"]  # of a table: our defaults, or the paper's small factorisation
Space = Literal["default", "paper", "own"]  # what `tune` searches: around the defaults, the paper's grid, what is named
EngineName = Literal["local", "ray"]  # who works on a log in shards: threads, or workers of a Ray cluster
