"""Train the quickstart with its ranks as threads of this process."""

from jaxpipe.comm import run_ranks
from jaxpipe.config import job_from, load_config, plan_from
from jaxpipe.runtime.train import train

config = load_config("experiments/quickstart/two_region.toml", ["run.folder=runs/notebook"])
plan = plan_from(config)
job = job_from(config, plan)
run_ranks(plan.num_ranks, lambda rank: train(job, rank, checkpoint=None, observe=print))
