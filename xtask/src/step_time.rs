//! Step time of a forward pass: the roofline that joins bytes, rates and links.
