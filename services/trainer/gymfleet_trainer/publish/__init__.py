"""How new weights reach the rollout replicas, and how their arrival is verified."""
