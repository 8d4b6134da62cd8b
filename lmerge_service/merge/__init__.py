"""The merge of one output partition, whoever runs it: input, state, transactions, recovery."""
