"""Train policies: the trainer, its learner and rollout collector, and the devices they use."""
