# SPDX-License-Identifier: Apache-2.0
"""Studies that many workers share, on a database server."""
