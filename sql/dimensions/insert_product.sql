INSERT INTO dim_product (product_key, source_system, product_no, created_by)
SELECT
    product_key,
    source_system,
    product_no,
    :load_id
FROM arriving_dim_product;
