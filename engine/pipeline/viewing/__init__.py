"""What views are made of: their declaration, and plans and inputs that several of them share."""
