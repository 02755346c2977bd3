"""imputation."""
