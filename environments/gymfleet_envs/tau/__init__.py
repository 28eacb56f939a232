"""The common parts of both environments of tau-bench: records, calls, the customer, the reward."""
