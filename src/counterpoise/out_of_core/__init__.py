"""Logs larger than memory: shards on disk, passes over them by threads or Ray, training by several processes.

Read in this order: `shards` (files become shards), `log` (StreamedLog and its batches), `family` and `balancing`
(weights over shards), `fitting` (a recommender on a streamed log), `process_group` and `distributed` (training by
workers of Ray).
"""
