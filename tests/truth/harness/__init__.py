"""Plays workloads under Underspan and compares what they claim with what the store holds."""
