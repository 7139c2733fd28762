# SPDX-License-Identifier: Apache-2.0
"""The one name that a frozen package of its own changes: the namespace of its PyTorch operators."""

NAMESPACE = "coldforge"
