"""gymnasium's own vector environments, stepped with actions drawn beforehand: `--work step-…` of measure.py. CartPole
has a batched implementation in NumPy, the others are stepped in turn.
"""

import gymnasium
from measure import Run, Stepping

run = Run("gymnasium", "gymnasium")
if not isinstance(run.work, Stepping):
    run.unknown()
env_id, num_envs = run.work.env_id, run.work.num_envs
batched = gymnasium.spec(env_id).vector_entry_point is not None
mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT if batched else gymnasium.VectorizeMode.SYNC
envs = gymnasium.make_vec(env_id, num_envs, vectorization_mode=mode)
run.extra = {"note": "vector_entry_point" if batched else "sync"}
envs.reset(seed=run.seed)
envs.action_space.seed(run.seed)
actions = [envs.action_space.sample() for _ in range(64)]
run.step_for(lambda i: envs.step(actions[i % len(actions)]))
run.report()
