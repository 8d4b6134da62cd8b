"""What each logical operator means: functions from whole temporal databases to one.

They are the oracle of all tests, and share no code with the operators: each is a few lines that
follow the definition, whatever that costs. A module per family of operators.
"""
