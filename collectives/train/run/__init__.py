"""The steps of one training: records, log file, progress on screen, evaluation and pictures."""
