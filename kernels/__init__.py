"""Mojo operations of weightless layers, their tests and their benchmarks; depends on Mojo only."""
