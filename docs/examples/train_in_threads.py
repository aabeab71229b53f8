"""Plan and train the quickstart with its ranks as threads."""

import jaxpipe

config = jaxpipe.load_config(
    "experiments/quickstart/two_region.toml",
    ["run.folder=runs/threads", "train.steps=20"],
)
cluster = jaxpipe.load_cluster(config.plan.cluster)
print(jaxpipe.draw_plan(jaxpipe.plan_from(config), cluster))
outcome = jaxpipe.train(config, observe=print)
print(outcome)
