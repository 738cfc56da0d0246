CREATE TABLE IF NOT EXISTS dim_product (
    product_key BIGINT NOT NULL,
    source_system VARCHAR NOT NULL,
    product_no VARCHAR NOT NULL,
    created_by VARCHAR NOT NULL,
    PRIMARY KEY (product_key),
    UNIQUE (source_system, product_no)
);
