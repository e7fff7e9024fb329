"""Figures as ratios against a yardstick of the same run, so that the machine cancels out."""
