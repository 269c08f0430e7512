"""What computes: the model's description, its weights, and the runner that makes one native call per step."""
