"""Physical operators, one family per module; each opens with what it means, its state, its stable
and retention rules, what it costs, and a trace."""
