"""TorchRL: `--work ppo-cartpole` only, written after its PPO tutorial. It is the slowest of the peers
there, so its goals are not timed.
"""

import torch
from measure import OnPolicy, Run
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

run = Run("torchrl", "torchrl")
work = run.work
if run.name != "ppo-cartpole" or not isinstance(work, OnPolicy):
    run.unknown()
torch.manual_seed(run.seed)
envs = SerialEnv(work.num_envs, lambda: GymEnv(work.env_id))
envs.set_seed(run.seed)


def mlp(outputs: int) -> nn.Sequential:
    """A multi-layer perceptron."""
    layers: list[nn.Module] = []
    inputs = 4
    for size in work.hidden_sizes:
        layers += [nn.Linear(inputs, size), nn.Tanh()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


actor = ProbabilisticActor(
    TensorDictModule(mlp(2), in_keys=["observation"], out_keys=["logits"]),
    in_keys=["logits"],
    distribution_class=OneHotCategorical,
    return_log_prob=True,
)
critic = ValueOperator(mlp(1), in_keys=["observation"])
advantage = GAE(gamma=work.gamma, lmbda=work.gae_lambda, value_network=critic, average_gae=False)
objective = ClipPPOLoss(
    actor,
    critic,
    clip_epsilon=work.clip_coef,
    entropy_coeff=work.entropy_coef,
    critic_coeff=work.value_coef,
    loss_critic_type="l2",
    normalize_advantage=True,
)
optimizer = torch.optim.Adam(objective.parameters(), lr=work.learning_rate, eps=1e-5)
rollout = work.num_envs * work.num_steps
collector = Collector(envs, actor, frames_per_batch=rollout, total_frames=run.asked_steps)
buffer = ReplayBuffer(
    storage=LazyTensorStorage(rollout), sampler=SamplerWithoutReplacement(), batch_size=work.batch_size
)


def learn() -> None:
    """The tutorial's loop."""
    for data in collector:
        run.steps += data.numel()
        with torch.no_grad():
            advantage(data)
        buffer.extend(data.reshape(-1))
        for _ in range(work.num_epochs):
            for batch in buffer:
                losses = objective(batch)
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                loss.backward()
                nn.utils.clip_grad_norm_(objective.parameters(), work.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()


run.train(learn)
run.report()
