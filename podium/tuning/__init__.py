"""Searches over settings: whole runs that are nested on the engine, told what to try by Optuna or by each other."""
