"""Backbones: what predicts, pairs in and logits out.

Read in this order: `base` (the contract), `matrix_factorization`, `neural_cf`, `item_popularity`, `exposure` (exposure
as a covariate), `embedding_ops` (fast inner products and their gradients).
"""
