"""Measures decode throughput of weightless layers against native dense."""
