"""The RPC reinforcement learning benchmark: what asking a policy for actions from many processes costs."""
