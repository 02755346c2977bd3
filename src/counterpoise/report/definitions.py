"""Definitions of the terms in a report; the page links every term to its definition."""

from __future__ import annotations

from counterpoise.balance.covariate_balance import BALANCED_SMD
from counterpoise.data.feedback import words_of

BASIC_TERMS = {"log", "all pairs", "probe", "test"}  # in every glossary; other terms where a page links to them
GLOSSARY = f"""
log: The observed ratings, the training data. Users and systems chose which pairs were rated, so the log is not a random
    sample of all pairs.
all pairs: Every user with every item, rated or not: the population that predictions are for.
label: 1 (positive) where the rating is at or above the threshold, else 0; without a threshold the rating.
label rate: The share of positive labels. If it is higher in the log than in a uniform sample, positives are
    over-represented in the log.
probe: A small uniformly collected sample that methods may learn from. It is never tested on.
test: Ratings that the model was not trained on. If their pairs were drawn uniformly from all pairs, metrics are
    unbiased; if users or a system chose them, as in a hold-out of the log, metrics are those of chosen pairs.
interval: A 95% interval. For metrics and their differences: the percentile interval over 200 bootstrap samples of users
    with all their rows. For label rates: Wilson's. It covers the choice of users, not other data or seeds.
activity: The number of ratings of a user in the log.
popularity: The number of ratings of an item in the log.
top tenth: The share of all ratings (or of all list entries) that belong to the most popular tenth of the items, or the
    most active tenth of the users. 10% if all were equal.
Gini: Gini coefficient of the ratings per user or item: 0 if all are equal, near 1 if one has nearly all.
weight: The weight of a row in training divided by the mean weight. In theory proportional to the inverse propensity, 1
    / P(observed).
effective sample size: (sum w)² / sum w²: the number of equally weighted rows with the same variance of a mean (Kish
    1965).
design effect: Rows / effective sample size: the factor by which the weights increase the variance of a mean.
weight tail: The share of all weight in the heaviest 1% of rows, and the largest weight / mean weight. If they are
    large, few rows dominate.
standardised mean difference: SMD = (mean over the log − mean over all pairs) / standard deviation over all pairs. A
    feature within ±{BALANCED_SMD} is usually called balanced.
change: |SMD| before weighting minus |SMD| after: positive where weighting improved balance.
KS distance: Kolmogorov-Smirnov distance: the largest difference of the two distribution functions, 0 to 1.
feature: Compared are log(1 + ratings) of users and items, the side features of the log, and the first four principal
    components (PC) of the user and item embeddings of a model of the labels. That model was trained on the log, so its
    components show a small imbalance even without selection.
held-out functions: 200 random kernel functions of all features in the table, which no method balances. Root mean square
    and largest imbalance, in standard deviations. They estimate balance without the optimism of the functions that were
    balanced.
held-out functions of the method: Random kernel functions of the features in which the method balances, learned from
    other rows; mean over folds.
balanced functions: The functions whose weighted means over the log the method matches to their means over all pairs, by
    fold. With a path of strengths they are compared with the log's users, each as often as in the log, with all items.
    Before: under the weights that the method starts from (its prior).
dual value: The Lagrange multiplier of a balanced function: the divergence of the weights saved per standard deviation
    of imbalance allowed. 0: the constraint is not active. Large: few rows of the log support the function.
relaxed: A function whose dual value would exceed `strength`: it is not balanced fully, and some imbalance remains.
    Where the strength is chosen along a path, this is meant: the rest would cost more effective sample.
path of strengths: Solutions at growing strengths, each from the one before. A stronger penalty of imbalance leaves less
    of it and a smaller effective sample. Chosen is the largest strength that keeps a share of the effective sample: by
    default that at which weights add at most 0.0005 to the expected log loss. The path ends before where no more is
    left than the tolerance, by default the imbalance that a random sample has by chance. The strength is a mean over
    folds.
loss: The training objective by epoch: risk and L2 prior. Losses of different methods are not comparable.
held-out risk: The risk on held-out rows of the log, used for early stopping. They are as biased as the log.
risk: The estimate of the mean error over all pairs that training minimised, at the end of training.
error on the log: The mean log loss over the log. It is optimistic, because the log is not a uniform sample.
AUC: The probability that a positive test row scores above a negative one; 0.5 is random. Per user: mean over users of
    the AUC within their rows.
NDCG: Normalised discounted cumulative gain of the top k test rows of each user: 1 if all positives come first. Mean
    over users; users without a positive in the test are left out.
precision: Positives among the top k, divided by k; mean over users with a positive in the test.
recall: Positives among the top k, divided by all positives of the user; mean over users with a positive in the test.
F1: 2 P R / (P + R) of mean precision P and mean recall R.
MSE: Mean squared error of the predicted probability; lower is better.
MAE: Mean absolute error of the predicted probability; lower is better.
log loss: Mean of −log of the probability predicted for the observed label; lower is better.
difference: This run minus the baseline (or minus the first run) on the same test, paired over bootstrap samples of
    users.
verdict: better or worse if the interval of the difference excludes 0, else not clear.
baseline: Matrix factorisation (MF) of the same log without correction for selection: every row has the same weight. It
    is fitted for this report with the training settings of the run, at most 300 steps on large logs, unless a saved
    run is given.
weighted estimate: An estimate of a metric over all pairs that were not trained on, from a biased test: its rows are
    weighted so that functions of user and item average as over these pairs. Naive: the mean over the rows as they are.
full ranking: The rank z of each held-out positive among all items that its user has no training row of, tied items in
    any order. Recall@k counts z <= k, DCG@k is 1 / log2(1 + z) up to k, MRR@k 1 / z up to k; means over positives.
weighted by exposure: A held-out click counts 1 / P(exposed), so that the mean stands for all relevant pairs, seen or
    not. P(exposed) is taken as the square root of the item's clicks over those of the most clicked item. Naive: each
    click counts alike.
sensitivity: The range of a weighted estimate, widened by its interval, if something that was not measured changed the
    odds of being observed by at most this odds ratio either way.
calibration: Test rows in ten groups of equal size by prediction: mean prediction against the share of positives. On the
    diagonal, a predicted 0.3 means 30%.
calibration error: Expected calibration error: mean over groups, by size, of |mean prediction − positives|.
score: The predicted probability of a positive label.
overlap: The mean share of a user's list that is also in the baseline's list.
items shown: Distinct items in the lists of the sampled users.
popularity rank: The mean share of all items with fewer ratings than a listed item: 1 if only the most popular item is
    listed, about 0.5 if lists do not depend on popularity.
log odds ratio: log(P(observed | positive) / P(observed | negative)), the log odds of a positive label in the log minus
    those among all pairs. 0: the missingness model is inactive.
intercept: Added to all predicted log odds, so that predictions average to the label rate of the probe.
slope: The factor of the predicted log odds that the labels of the probe support; below 1, predictions were too extreme.
ensemble: The prediction averages a predictor with the missingness model and one without. Their weights are those under
    which the labels of the probe are likeliest, kept near those for a log of this size where the probe is small.
observation probability: P(observed | label) by Bayes' rule from the label rates of the log and of the probe. Their
    difference is shrunken by its standard error.
ordinal log odds: The log odds of a rating at or above a level, for a pair of average odds. By proportional odds the
    levels are at fixed distances for every pair, so a rating is informative beyond its side of the threshold. The
    ordinal weight, measured on the log, is the share of this information that is used: 0 none, 1 all.
exposure coefficients: The change of the log odds of a positive label per standard deviation of the exposure of the
    user, item or pair. Learned from labels; near 0 if exposure is unrelated to the labels.
ideal loss: The mean log loss over all pairs, which is known in a simulation only.
bias: (estimate − truth) / truth of the mean error over all pairs, which is known in a simulation only.
seconds: Wall-clock time of the fit.
seed: The seed of the probe, the initial parameters and the batches.
"""
CLICK_GLOSSARY = """
log: The clicks that were observed, the training data: each of a pair that the user saw and liked. A pair without a
    click was not relevant, or not seen; the log does not say which.
label: 1 for a click. A test of relevance has 0 for pairs that are not relevant.
label rate: The share of relevant pairs.
score: The probability of relevance, as the method models it. Methods that only rank give a score for ranking.
baseline: Weighted matrix factorisation (WMF) of the same clicks, without correction for exposure. It is fitted for this
    report unless a saved run is given.
"""


# One term per line, "term: definition"; indented lines continue the definition.
def _terms(glossary: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in glossary.strip().replace("\n    ", " ").splitlines())


DEFINITIONS, OF_CLICKS = _terms(GLOSSARY), _terms(CLICK_GLOSSARY)


def definitions(feedback: str) -> dict[str, str]:
    """The definitions in the words of a kind of feedback."""
    words = words_of(feedback)
    own = OF_CLICKS if feedback == "clicks" else {}
    return {term: own.get(term, words(text)) for term, text in DEFINITIONS.items()}
