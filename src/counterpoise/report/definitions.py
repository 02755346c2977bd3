"""Every number that a report shows, in words: what it is, and what to make of it."""

from __future__ import annotations

DEFINITIONS = {
    "log": (
        "The pairs of a user and an item whose rating was observed: what the model learns from. Nobody drew "
        "them at random, which is the trouble."
    ),
    "all pairs": "Every user with every item, rated or not: whom the recommender is for.",
    "density": "Rows of the log over the number of all pairs.",
    "label": "1 where the rating is at or above the threshold (a positive), else 0; without a threshold the rating.",
    "label rate": "The share of positive labels. A log with a higher rate than a uniform sample flatters every item.",
    "probe": "A small uniformly collected sample that methods may use. It is never tested on.",
    "test": "Uniformly collected ratings that the model has not seen: what it is judged on.",
    "interval": (
        "A 95% interval. Of metrics and their differences: the percentile interval over 200 draws of users "
        "with all their rows. Of label rates: Wilson's. It tells of other users, not of other data or seeds."
    ),
    "activity": "How many ratings a user has given.",
    "popularity": "How many ratings an item has in the log.",
    "top tenth": (
        "The share of all ratings that the most popular (most active) tenth of the items (users) holds. 10% "
        "if all were equal."
    ),
    "Gini": "How unequal ratings are spread: 0 if all have as many, near 1 if one has nearly all.",
    "weight": (
        "How much a row counts in training, here over the mean weight: 1 is average. In theory the inverse of"
        " the chance of being observed."
    ),
    "weighted label rate": (
        "The label rate of the log when rows count by their weights. Near the rate of a uniform sample if the"
        " weights undo the selection of labels."
    ),
    "effective sample size": "(sum w)² / sum w²: as many rows with equal weights have the same variance (Kish 1965).",
    "design effect": "Rows over effective sample size: how many times larger weights make the variance of a mean.",
    "tail": (
        "The share of all weight in the heaviest 1% of rows, and the largest weight over the mean. Large "
        "values: a few rows decide."
    ),
    "standardised difference": (
        "(Mean over the log − mean over all pairs) / standard deviation over all pairs (SMD). Within ±0.1 is "
        "usually called balanced; 0 is perfect."
    ),
    "change": "|Standardised difference| before minus after: positive where weighting helped.",
    "distance": "Kolmogorov and Smirnov's: the largest distance of the two distribution functions, 0 to 1.",
    "feature": (
        "What is compared: log(1 + ratings) of users and items, the side features that came with the log, and"
        " the four directions in which the embeddings of a model of the labels vary most. That model has seen"
        " the rows, so its directions show a little selection even where there is none."
    ),
    "held-out functions": (
        "200 kernel functions of all features in the table, at random pairs; no method was told of them. Root"
        " mean square and largest imbalance, in standard deviations. Balance there was not bought, so it can "
        "be believed."
    ),
    "held-out functions of the method": (
        "The same kind of functions, in the features in which the method itself balanced, learned from other "
        "rows; the mean over folds."
    ),
    "balanced functions": (
        "The functions whose means the method was asked to match, fold by fold. Before: with the weights it "
        "started from (its prior)."
    ),
    "dual price": (
        "What one more standard deviation of imbalance in a function would save in divergence of the weights."
        " 0: it cost nothing to balance. Large: the log hardly has the rows for it."
    ),
    "given up": (
        "A function whose balance would have cost more than `strength`: some imbalance is left there on purpose."
    ),
    "gap": "The certificate of the solver: the objective is at most so far from the best possible.",
    "loss": "What training minimised: the risk and the prior, by epoch. Losses of different methods do not compare.",
    "held-out risk": (
        "The risk on rows held out of the log, by which training stopped. They are as biased as the log."
    ),
    "risk": "The estimate of the mean error over all pairs from which the model learned, at the end of training.",
    "error on the log": "The mean log loss over the log: flattering, because the log is not a uniform sample.",
    "AUC": (
        "The chance that a positive row of the test scores above a negative one; 0.5 is guessing. Per user: "
        "within each user's rows, averaged."
    ),
    "NDCG": "Normalised discounted cumulative gain of each user's first k test rows: 1 if all positives stand first.",
    "precision": "Positives among the first k, over k; mean over users.",
    "recall": "Positives among the first k, over all positives of the user; mean over users.",
    "F1": "2 P R / (P + R) of mean precision P and mean recall R.",
    "MSE": "Mean squared error of the predicted probability; lower is better.",
    "MAE": "Mean absolute error of the predicted probability; lower is better.",
    "log loss": "Mean of −log of the probability that was given to what happened; lower is better.",
    "difference": (
        "This run minus plain MF (or minus the first run), on the same test, with the same users in every draw."
    ),
    "verdict": "better or worse where the interval of the difference leaves out 0; else not clear.",
    "plain MF": (
        "The same log, every row counts the same: what one would use without thinking of selection. Fitted "
        "for this report with the training settings of the run, on large logs for 300 steps, unless a run of "
        "it is given."
    ),
    "calibration": (
        "Test rows in ten groups of equal size by prediction: what was predicted against the share of "
        "positives. On the diagonal, a predicted 0.3 means 30%."
    ),
    "calibration error": "The mean over groups, by size, of |mean prediction − share of positives|.",
    "score": "The predicted probability of a positive label.",
    "overlap": "The mean share of a user's list that plain MF would have shown too.",
    "items shown": "Different items in the lists of the sampled users.",
    "popularity rank": (
        "The mean share of all items that have fewer ratings than a shown one: 1 shows the most popular "
        "alone, about 0.5 is indifferent to popularity."
    ),
    "contrast": "log(chance of being observed if positive / if negative). 0: silence says nothing.",
    "level": "What is added to all log odds, so that predictions average to the label rate of the probe.",
    "chance of being observed": (
        "By Bayes' rule from the label rates of the log and of the probe, drawn towards each other as far as "
        "chance may explain their difference."
    ),
    "grades": (
        "The log odds of a rating at or above a level, for a pair of average odds. Each level is that far from the "
        "next, for every pair alike (proportional odds), so that a rating says more than its side of the threshold. "
        "How far that is believed was measured on the log: 0 not at all, 1 fully."
    ),
    "exposure_coefficients": (
        "What the exposure of a user, an item and a pair adds to the log odds of a positive label, for one "
        "standard deviation of it. Learned from labels; near 0 where exposure has nothing to do with taste."
    ),
    "ideal loss": "The mean log loss over all pairs, which only a simulation knows.",
    "bias": "(Estimate − truth) / truth of the mean error over all pairs, which only a simulation knows.",
    "seconds": "Wall-clock time on the machine of the fit.",
    "seed": "Draws the probe, the start of training and its batches.",
}
