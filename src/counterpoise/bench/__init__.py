"""Experiments: the paper's table and figures, the effect of the protocol, and the bias of risk estimators.

Read in this order: `datasets`, `methods`, `presets` and `published` (what is compared), `jobs`, `store` and `runner`
(making the fits, resumable), `tuning` (searches for the settings of each method, inside the log), `statistics`,
`summary` and `tables` (from fits to facts to text), `sweep` and `protocol` (other questions to the same fits), `bias`
(estimates of the ideal loss where it is known).
"""
