"""A policy from three functions: its network, how it finishes a trajectory, what it minimises. Also on the command line:
podium train examples.three_functions:ALGORITHM CartPole-v1 --lr "1e-2->0" --fragment 16"""

from torch import nn

import podium


class Network(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.action = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, outputs))
        self.value = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, obs):
        return self.action(obs), self.value(obs)


def model(space, outputs):
    return Network(space.shape[0], outputs)


def postprocess(policy, batch, now):
    finished = podium.advantages(policy, batch, now)
    advantage = finished["advantage"]
    return finished.with_columns(advantage=(advantage - advantage.mean()) / (advantage.std() + 1e-8))


def loss(out, rows, now):
    policy_loss = -(out.logp * rows["advantage"]).mean()
    value_loss = (out.value - rows["return"]).square().mean()
    return policy_loss + now.value_coef * value_loss, {"policy_loss": policy_loss, "value_loss": value_loss}


ALGORITHM = podium.on_policy("three-functions", podium.ActorCriticConfig, loss, postprocess, model)

if __name__ == "__main__":
    result = podium.train(ALGORITHM, "CartPole-v1", steps=150_000, lr="1e-2->0", fragment=16)
    print(f"return {result['return_mean']:.0f} after {result['env_steps']} steps, in {result.folder}")
