# SPDX-License-Identifier: Apache-2.0
"""Search strategies against recorded spaces, offline."""
