"""What may be sent: permission, caps and pace; and what of them was used."""
