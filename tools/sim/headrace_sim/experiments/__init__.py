"""Policies compared on the virtual clock: one module and one command each. `python -m
headrace_sim.experiments NAME`.
"""
