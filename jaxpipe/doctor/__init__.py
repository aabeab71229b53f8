"""Checks whether this machine, or this job, is fit to train: findings, each with its fix.

::

    alone          2 ranks are started ──┐
    under mpirun   all ranks of the job ─┴──► gather facts ──► judge ──► findings
"""

from jaxpipe.doctor.facts import RankFacts, gather_facts
from jaxpipe.doctor.finding import Finding, Health
from jaxpipe.doctor.hello import say_hello
from jaxpipe.doctor.judge import judge_job
from jaxpipe.doctor.long_links import judge_links_of, judge_ways_to
from jaxpipe.doctor.run_disk import judge_disk
from jaxpipe.doctor.survival import judge_survival, judge_survival_of_job

__all__ = [
    "Finding",
    "Health",
    "RankFacts",
    "gather_facts",
    "judge_disk",
    "judge_job",
    "judge_links_of",
    "judge_survival",
    "judge_survival_of_job",
    "judge_ways_to",
    "say_hello",
]
