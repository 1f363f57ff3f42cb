"""The plans by the names of their tasks. It knows nothing else."""

from regard.training.plans.plan import Plan
from regard.training.plans.translation import TranslationPlan

PLANS: dict[str, type[Plan]] = {"seq2seq": TranslationPlan}
