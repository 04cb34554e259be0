"""Which hosts there are: membership in the store, and the ring as this host sees it."""

from fairlead.cluster.membership import InvalidMembership, Membership, MembershipTimes

__all__ = ["InvalidMembership", "Membership", "MembershipTimes"]
