"""All cases of the oracle."""

from oracle.case import Case
from oracle.encoder_cases import ENCODER_CASES
from oracle.gpt_cases import GPT_CASES
from oracle.llama_cases import LLAMA_CASES

CASES: list[Case] = [*GPT_CASES, *LLAMA_CASES, *ENCODER_CASES]
