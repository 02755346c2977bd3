"""Logs that do not fit in memory, and passes over them in threads or on a Ray cluster.

Read in this order: `shards` (a log as files of codes), `engines` (where passes run), `family` and `balancing` (weights
over shards), `log` and `fitting` (training from shards), `process_group` and `distributed` (training by workers).
"""
