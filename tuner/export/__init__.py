# SPDX-License-Identifier: Apache-2.0
"""A study's trials as files for other programs: CSV, JSON, and the results format T4 of the auto-tuning
community."""
