"""Operations under way, how they are waited for, and what becomes of those that do not end."""
