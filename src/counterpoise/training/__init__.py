"""One fit: the contracts of its parts, one step of learning, the loop.

Read in this order: `contracts` (FitContext: data, randomness, pretraining; Weights and Imputation, and what they become
in a fit), `learner` (one step), `loop` (epochs), `optimizer`, `ordinal` (ratings beyond the label), `ensemble` (the
average of two predictors), `checkpoint`.
"""
