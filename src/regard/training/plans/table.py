"""The plans by the names of their tasks. It knows nothing else."""

from regard.training.plans.classification import ClassificationPlan
from regard.training.plans.language import LanguagePlan
from regard.training.plans.masked import MaskedPlan
from regard.training.plans.plan import Plan
from regard.training.plans.translation import TranslationPlan

PLANS: dict[str, type[Plan]] = {"seq2seq": TranslationPlan, "language": LanguagePlan, "masked": MaskedPlan,
                                "classify": ClassificationPlan}
