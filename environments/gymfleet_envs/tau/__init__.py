"""What both environments of tau-bench share: records, calls, the customer, the reward."""
