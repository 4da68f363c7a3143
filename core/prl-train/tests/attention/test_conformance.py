"""The conformance kit on the trainer's own kernels, in every dtype that they offer on CPU."""

from __future__ import annotations

import pytest

from prl.contracts import AttentionKernel, AttentionPasses
from prl.testing import AttentionSuite
from prl_train.attention import flex, sdpa
from prl_train.attention.naive import NaivePasses
from prl_train.plugin import prl_attention_kernels

RECORDS = {record.name: record for record in prl_attention_kernels()}


class TestSdpa(AttentionSuite):
    """Its two passes, from which the kit makes a callable."""

    features = RECORDS["sdpa"].features

    @pytest.fixture
    def kernel(self) -> AttentionKernel | AttentionPasses:
        return sdpa.create()


class TestSdpaAsTheTrainerCallsIt(TestSdpa):
    """Its own callable, which serves plain attention without the log-sum-exp."""

    features = tuple(feature for feature in RECORDS["sdpa"].features if feature != "lse")


class TestSdpaInHalfPrecision(TestSdpa):
    dtype = "bfloat16"


class TestSdpaInFloat16(TestSdpa):
    dtype = "float16"


class TestWrittenOut(AttentionSuite):
    """What serves where no operator does."""

    features = RECORDS["sdpa"].features

    @pytest.fixture
    def kernel(self) -> AttentionKernel | AttentionPasses:
        return NaivePasses()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
class TestFlex(AttentionSuite):
    features = RECORDS["flex"].features
    has_backward = False

    @pytest.fixture
    def kernel(self) -> AttentionKernel | AttentionPasses:
        return flex.create()
