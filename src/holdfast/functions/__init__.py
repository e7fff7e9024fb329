"""Functions as tools: a Python function of the program, offered to a model as a tool.

Builds schemas, runs functions and converts their results. Approval, recording and recovery of calls
belong to the engine; the toolbox finds the functions here.
"""
