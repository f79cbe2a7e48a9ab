"""Answers of a given form: what can be asked for, and grammars made of it.

Only `compile` needs torch and xgrammar. The rest also runs in the processes
that do without, at the door.
"""
