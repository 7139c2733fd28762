# SPDX-License-Identifier: Apache-2.0
"""The hand-written part of a package of frozen kernels: loading, building, checking, dispatching. Imports
only torch.
"""
