"""Search of a method's settings for the least debiased validation risk.

Read `tune` first (the search), then `search_space` (which settings, in which ranges), `study` (Optuna's study, which
proposes and remembers) and `result` (the trials, the best of them, and whether its gain is significant). The risk
itself is in `evaluation.estimates`.
"""
