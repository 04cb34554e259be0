"""The root partition of a task queue: its adaptive scaler, and the partition configuration that it pushes to all."""
